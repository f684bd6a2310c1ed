"""Says how it was started, then ends as asked: python echo.py [ARGS]. Needs no torch."""

import os
import signal
import sys
import time

print(sys.argv[1:], __name__, sys.stdin.read() if "stdin" in sys.argv else "", flush=True)
if "wait" in sys.argv:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(33))
    print("ready", flush=True)
    time.sleep(60)
if "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(5)
