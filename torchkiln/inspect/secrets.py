"""What looks like a secret, by path and by content; pure.

Content of wheels is not searched: it is public, pinned by hash, and full of examples. What is searched is everything
else in a layer, files deleted by a later layer included.
"""

from __future__ import annotations

import re

CONTENT = (
    ("a private key", b"PRIVATE KEY-----", rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\r?\n[A-Za-z0-9+/=\r\n]{60}"),
    ("an AWS access key", b"AKIA", rb"\bAKIA[0-9A-Z]{16}\b"),
    ("an AWS session key", b"ASIA", rb"\bASIA[0-9A-Z]{16}\b"),
    ("a GitHub token", b"ghp_", rb"\bghp_[A-Za-z0-9]{36}"),
    ("a GitHub token", b"github_pat_", rb"\bgithub_pat_[A-Za-z0-9_]{50}"),
    ("a GitLab token", b"glpat-", rb"\bglpat-[A-Za-z0-9_-]{20}"),
    ("a Hugging Face token", b"hf_", rb"\bhf_[A-Za-z]{34}\b"),
    ("an npm token", b"npm_", rb"\bnpm_[A-Za-z0-9]{36}\b"),
    ("a PyPI token", b"pypi-AgEI", rb"\bpypi-AgEI[A-Za-z0-9_-]{50}"),
    ("a Slack token", b"xox", rb"\bxox[abprs]-[0-9A-Za-z-]{20}"),
)
"""What it is, a part it always has (looked for first: much faster than the pattern), and its form."""
SETTINGS_CONTENT = (
    ("a password in an address", re.compile(rb"[a-z][a-z0-9+.-]*://[^\s/:@'\"<>$]+:[^\s/@'\"<>$]+@")),
    ("a proxy setting", re.compile(rb"(?im)^\s*(?:export\s+)?(?:acquire::\w+::proxy|(?:https?_|all_)?proxy\s*=)")),
)
SETTINGS = re.compile(r"^(?:etc|root|home|workspace)/|(?:^|/)(?:pip\.conf|uv\.toml|direct_url\.json|\.\w+rc)$")
"""Where people put settings; documentation and code elsewhere are full of example addresses."""
PATHS = (
    ("a git repository", re.compile(r"(?:^|/)\.git(?:/|$)")),
    (
        "credentials",
        re.compile(r"(?:^|/)(?:\.netrc|\.pypirc|\.git-credentials|\.aws/credentials|\.docker/config\.json)$"),
    ),
    ("an environment file", re.compile(r"(?:^|/)\.env$")),
    ("an SSH key", re.compile(r"(?:^|/)(?:id_(?:rsa|dsa|ecdsa|ed25519)|ssh_host_\w+_key)$")),
    ("apt credentials", re.compile(r"^etc/apt/auth\.conf(?:\.d/.|$)")),
)
VARIABLE = re.compile(
    r"(?i)(?:^|_)(?:token|secret|passw(?:or)?d|api_?key|credentials?|(?:https?_|all_|ftp_|no_)?proxy)$"
)


def found_in(path: str, content: bytes) -> list[str]:
    """Everything suspicious about a file."""
    named = [what for what, pattern in PATHS if pattern.search(path)]
    stated = [what for what, part, form in CONTENT if part in content and re.search(form, content)]
    settings = SETTINGS_CONTENT if SETTINGS.search(path) else ()
    return named + stated + [what for what, pattern in settings if pattern.search(content)]
