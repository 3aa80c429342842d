"""A program of its own: kill a process when the program that holds our standard input dies without a word.

bubblewrap's --die-with-parent is such a promise too, but as root it has given up every capability by then, and the
kernel does not let it signal a command of another user.
"""

import signal
import sys

if __name__ == "__main__" and not sys.stdin.buffer.read(1):
    signal.pidfd_send_signal(int(sys.argv[1]), signal.SIGKILL)
