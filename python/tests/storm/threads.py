"""The callers: threads, tasks of event loops, and the main thread with signals; and the threads
that drop their memory."""

import asyncio
import concurrent.futures
import ctypes
import gc
import itertools
import os
import random
import signal
import threading

from .actions import Actions
from .calls import Call
from .stores import Home
from .tally import Tally

_tgkill = ctypes.CDLL(None).tgkill


class Interrupted(KeyboardInterrupt):
    """Raised by signal handlers."""


class Storm:
    """A number of calls of the stores in `homes`."""

    def __init__(self, seed: int, operations: int, homes: list[Home], tally: Tally) -> None:
        self._seed, self._operations, self._homes, self._tally = seed, operations, homes, tally
        self._next = itertools.count()
        self._seeds = itertools.count(1)
        self._calls: dict[int, Call] = {}
        # Set while a handler may raise: during a call, and not while its end is handled.
        self._armed = False

    def _rng(self) -> random.Random:
        return random.Random(f"{self._seed} {next(self._seeds)}")

    def _each_call(self, tensors: bool = True):
        """Random calls, until their number is reached."""
        rng = self._rng()
        actions = [Actions(rng, home, self._tally, tensors) for home in self._homes]
        while next(self._next) < self._operations and not self._tally.stop.is_set():
            self._tally.count("operations")
            yield rng, rng.choice(actions).call()

    def run(self) -> None:
        """Returns when all threads have ended. Call it in the main thread of a process that does
        nothing else: the handlers stay installed, since a signal may still be pending for a thread
        that has not run since."""
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGALRM):
            signal.signal(number, self._handle)
        callers = [threading.Thread(target=self._tally.guarded, args=(self._call,)) for _ in range(3)]
        callers += [threading.Thread(target=self._tally.guarded, args=(self._loop,)) for _ in range(2)]
        over = threading.Event()
        others = [threading.Thread(target=self._tally.guarded, args=(body, over)) for body in (self._drop, self._signal)]
        for thread in callers + others:
            thread.start()
        self._tally.guarded(self._call_under_signals)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for thread in callers:
            thread.join()
        over.set()
        for thread in others:
            thread.join()

    def _made(self, call: Call):
        """Make a call, visible to the threads that drop memory."""
        self._calls[id(call)] = call
        try:
            return call.run()
        finally:
            self._calls.pop(id(call), None)

    # A thread that waits for each call.

    def _call(self) -> None:
        for _, call in self._each_call():
            try:
                result = self._made(call)
            except Exception as error:
                call.failed(self._tally, error)
            else:
                call.finish(self._tally, result)

    # The main thread.

    def _handle(self, number: int, _frame) -> None:
        self._tally.count(f"signal: {signal.Signals(number).name}")
        if self._armed:
            self._armed = False
            raise Interrupted(number)

    def _call_under_signals(self) -> None:
        # A tensor is released in Python code, where an exception of a handler would be lost.
        for rng, call in self._each_call(tensors=False):
            signal.setitimer(signal.ITIMER_REAL, rng.choice((0, 0.0001, 0.0005, 0.002)))
            self._interruptible(call)

    def _interruptible(self, call: Call) -> None:
        try:
            self._armed = not call.whole
            result = self._made(call)
            self._armed = False
        except Interrupted:
            begun = call.begun
            call.interrupted()
            self._tally.count("interrupted in a call" if begun else "interrupted before a call")
        except Exception as error:
            self._armed = False
            call.failed(self._tally, error)
        else:
            call.finish(self._tally, result)

    def _signal(self, over: threading.Event) -> None:
        """Send signals to this process, to the main thread, and to any thread, including those
        without Python."""
        rng = self._rng()
        main, process = threading.main_thread().ident, os.getpid()
        while not over.wait(rng.uniform(0, 0.002)):
            number, whom = rng.choice((signal.SIGINT, signal.SIGUSR1)), rng.random()
            if whom < 0.3:
                signal.pthread_kill(main, number)
            elif whom < 0.4:
                os.kill(process, number)
            else:
                # The thread may have ended, which is no error.
                _tgkill(process, int(rng.choice(os.listdir("/proc/self/task"))), number)

    # Tasks.

    def _loop(self) -> None:
        with concurrent.futures.ThreadPoolExecutor(3) as threads:
            asyncio.run(self._tasks(threads))

    async def _tasks(self, threads: concurrent.futures.Executor) -> None:
        loop, running = asyncio.get_running_loop(), set()
        for rng, call in self._each_call():
            made = asyncio.ensure_future(loop.run_in_executor(threads, self._made, call))
            running.add(asyncio.create_task(self._task(call, made, rng.random(), rng.choice((0, 0.0002, 0.002)))))
            while len(running) >= 4:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        await asyncio.gather(*running)

    async def _task(self, call: Call, made: asyncio.Future, what: float, after: float) -> None:
        """Await a call, or cancel it after a moment, as engines do with an aborted request."""
        if call.whole or what < 0.5:
            await asyncio.wait([made])
        elif what < 0.75:
            await asyncio.wait([made], timeout=after)
        else:
            await asyncio.sleep(0)
        if not made.done():
            call.drop(self._tally, "cancelled")
            made.cancel()
            # Another thread continues it, or never starts it.
            return
        try:
            result = made.result()
        except Exception as error:
            call.failed(self._tally, error)
        else:
            call.finish(self._tally, result)

    # Threads that drop the memory of calls.

    def _drop(self, over: threading.Event) -> None:
        rng = self._rng()
        while not over.wait(rng.uniform(0, 0.001)):
            for call in list(self._calls.values()):
                what = rng.random()
                if what < 0.2:
                    call.extend(self._tally, rng)
                elif what < 0.4:
                    call.drop(self._tally, "dropped")
            for home in self._homes:
                home.slots.fill_released()
                home.slots.check_oldest()
            if rng.random() < 0.02:
                gc.collect()
