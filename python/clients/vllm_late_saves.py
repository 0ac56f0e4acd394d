"""The connector with asynchronous saves that are as late as possible: none starts before it is
waited for.

Loaded by `"kv_connector_module_path": "vllm_late_saves"`. If a block is overwritten while a save
still reads it, wrong bytes are stored. At its end it reports how many saves a step waited for.
"""

import sys

from pagelith.vllm import PagelithConnector, saving

__all__ = ["PagelithConnector"]


class Late:
    """A thread that runs a job only when it is waited for, after the earlier jobs."""

    def __init__(self, *_):
        self.jobs, self.begun = [], 0

    def submit(self, body, *arguments):
        self.jobs.append(Job(self, body, arguments))
        return self.jobs[-1]

    def shutdown(self, wait):
        assert not self.jobs, "closed before its saves ended"


class Job:
    def __init__(self, late, body, arguments):
        self.late, self.body, self.arguments = late, body, arguments

    def done(self):
        return self not in self.late.jobs

    def result(self):
        while not self.done():
            first = self.late.jobs.pop(0)
            self.late.begun += 1
            first.body(*first.arguments)


def end(self):
    print(f"saves that a step waited for: {self._thread.begun}", file=sys.stderr)
    at_the_end(self)


saving.ThreadPoolExecutor = Late
at_the_end, saving.Saving.close = saving.Saving.close, end
