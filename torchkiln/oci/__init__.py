"""Images as immutable values (OCI image-spec 1.1), and the layout on disk that holds them."""
