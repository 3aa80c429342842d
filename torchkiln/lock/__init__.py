"""What exactly goes in: wheels pinned by version, hash, file name and size."""
