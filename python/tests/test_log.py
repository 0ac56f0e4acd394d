"""The engine's log events in Python's logging, and the open report."""

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import unittest

import pagelith
from pagelith import _log

SPACE = pagelith.Namespace("test")


def settings(directory, **more):
    ssd = {"dirs": [directory], "bytes": "64MiB", "segment_bytes": "4MiB", "io": "blocking"}
    return {"dram": {"bytes": "8MiB"}, "index": {"max_objects": 10000}, "ssd": ssd, **more}


def pages(count):
    return pagelith.Key(SPACE, bytes(32)).on_pages([f"page {n}" for n in range(count)])


class RecordCollector(logging.Handler):
    """Keeps records; `awaited` is set once a record has this message."""

    def __init__(self, message=None):
        super().__init__()
        self.records, self.message, self.awaited = [], message, threading.Event()

    def emit(self, record):
        self.records.append(record)
        if self.message is not None and self.message in record.getMessage():
            self.awaited.set()


class Log(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.directory = os.path.join(self.home.name, "store")

    def test_events_of_call_are_logged_with_fields_when_it_returns(self):
        with self.assertLogs("pagelith", "INFO") as said:
            pagelith.Store(settings(self.directory)).close()
        records = {record.getMessage().split(" backend=")[0]: record for record in said.records}
        record = records["disk opened"]
        self.assertEqual((record.name, record.levelno, record.fields["backend"]), ("pagelith", logging.INFO, "Blocking"))
        self.assertIn("blocking is configured", record.fields["reason"])
        self.assertIn("blocking is configured", record.getMessage())
        self.assertTrue(record.target.startswith("pagelith") and record.pathname.endswith(".rs") and record.lineno > 0)
        self.assertEqual(records["store is open"].fields["objects"], 0)

    def test_fork_holds_no_lock_while_other_hooks_release_gil(self):
        program = """if True:
            import os, threading
            taken = threading.Event()
            # Registered before the package's own hook, so it runs after that; another thread takes
            # events meanwhile.
            os.register_at_fork(before=taken.wait)
            from pagelith import _native
            begin = threading.Event()
            os.register_at_fork(before=begin.set)
            def take():
                begin.wait()
                _native._log_take()
                taken.set()
            threading.Thread(target=take, daemon=True).start()
            child = os.fork()
            if child == 0:
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            """
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
        self.assertEqual(done.stdout, "0\n", done.stderr)

    def test_damaged_checkpoint_is_logged_and_in_open_report(self):
        with pagelith.Store(settings(self.directory)) as store:
            self.assertTrue(all(store.put(pages(200), [b"x" * 5000] * 200)))
        for name in ("checkpoint.0", "checkpoint.1"):
            # After its head, which declares the checkpoint complete.
            with open(os.path.join(self.directory, name), "r+b") as file:
                file.seek(4096)
                body = file.read(4096)
                file.seek(4096)
                file.write(bytes(byte ^ 1 for byte in body))
        with self.assertLogs("pagelith", "WARNING") as said, pagelith.Store(settings(self.directory)) as store:
            self.assertEqual((store.opened.objects, store.opened.from_checkpoint, store.opened.refused_checkpoints), (200, False, 1))
        (record,) = said.records
        self.assertRegex(record.getMessage(), "^checkpoint is incomplete, it is not used serial=[0-9]+ reason=")
        self.assertEqual((record.levelno, record.fields["serial"] > 0), (logging.WARNING, True))

    def test_damage_is_logged_by_thread_without_calls(self):
        with pagelith.Store(settings(self.directory, dram={"bytes": "8MiB", "promote": "never"})) as store:
            self.assertTrue(store.put(pages(1), [b"x" * 5000])[0])
        with open(os.path.join(self.directory, "segments"), "r+b") as file:
            whole = file.read()
            at = whole.index(b"x" * 5000)
            file.seek(at)
            file.write(b"y")
        kept = RecordCollector("damaged")
        logging.getLogger("pagelith").addHandler(kept)
        self.addCleanup(logging.getLogger("pagelith").removeHandler, kept)
        with pagelith.Store(settings(self.directory)) as store:
            got = store.get(pages(1), [bytearray(5000)])[0]
            self.assertEqual((bool(got), got.cause), (False, "damaged"))
            self.assertTrue(kept.awaited.wait(60))
        record = next(record for record in kept.records if "damaged" in record.getMessage())
        self.assertEqual((record.levelno, record.fields["segment"] >= 0), (logging.WARNING, True))

    def test_events_beyond_queue_limit_are_dropped_and_counted(self):
        summary = settings(self.directory, log={"batch_summary": True})
        kept = RecordCollector()
        logger = logging.getLogger("pagelith")
        logger.addHandler(kept)
        self.addCleanup(logger.removeHandler, kept)
        logger.setLevel(logging.INFO)
        self.addCleanup(logger.setLevel, logging.NOTSET)
        with pagelith.Store(summary) as store:
            into = bytearray(8)
            # No thread logs meanwhile: the logging thread waits for this lock.
            with _log._lock:
                for _ in range(9000):
                    store.get(pages(1), [into])
        dropped = sum(record.fields["dropped"] for record in kept.records if "were dropped" in record.getMessage())
        batches = sum("get batch" in record.getMessage() for record in kept.records)
        self.assertTrue(dropped > 0)
        self.assertEqual(dropped + batches, 9000)

    def test_debug_events_are_recorded_if_enabled_at_open(self):
        for level, heard in [(logging.INFO, False), (logging.DEBUG, True), (logging.WARNING, False)]:
            with self.assertLogs("pagelith", level) as said:
                logging.getLogger("pagelith").warning("something")
                with pagelith.Store(settings(self.directory, ssd={**settings(self.directory)["ssd"], "checkpoint_segments": 1})) as store:
                    store.put(pages(1200), [bytes([level]) * 4000] * 1200)
                    store.flush()
            self.assertEqual(any(record.levelno == logging.DEBUG for record in said.records), heard)

    def test_failing_or_reentrant_handlers_fail_no_call(self):
        case = self

        class Calling(logging.Handler):
            def emit(self, record):
                with pagelith.Store({"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10}}) as store:
                    case.assertFalse(store.exists(pages(1))[0])
                raise RuntimeError("a handler's own")

        handler = Calling()
        logger = logging.getLogger("pagelith")
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)
        handler.addFilter(lambda record: "disk opened" in record.getMessage())
        logger.setLevel(logging.INFO)
        self.addCleanup(logger.setLevel, logging.NOTSET)
        with pagelith.Store(settings(self.directory)) as store:
            self.assertTrue(store.put(pages(1), [b"x"])[0])

    def test_interrupt_during_logging_reaches_caller(self):
        class Interrupting(logging.Handler):
            def emit(self, record):
                raise KeyboardInterrupt

        handler = Interrupting()
        logger = logging.getLogger("pagelith")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        self.addCleanup(logger.setLevel, logging.NOTSET)
        # The logging thread does not log concurrently either: it waits for this lock.
        with _log._lock, self.assertRaises(KeyboardInterrupt):
            pagelith.Store(settings(self.directory))
        logger.removeHandler(handler)
        pagelith.Store(settings(self.directory)).close()

    def run_program(self, program):
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps(settings(self.directory))], capture_output=True, text=True, timeout=100, check=False
        )
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1:]), (0, ["done"]), done.stderr)
        return done.stderr

    def test_forked_child_logs_its_own_events(self):
        stderr = self.run_program(
            """if True:
            import json, logging, os, sys, threading, pagelith
            logging.basicConfig(level=logging.INFO, format=f"%(process)d %(message)s")
            told = json.loads(sys.argv[1])
            base = told["ssd"]["dirs"][0]
            stop = threading.Event()

            def busy():
                with pagelith.Store({"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10}, "log": {"batch_summary": True}}) as store:
                    key = pagelith.Key(pagelith.Namespace("n"), bytes(32))
                    while not stop.is_set():
                        store.get([key], [bytearray(8)])

            # Events arrive during the fork.
            thread = threading.Thread(target=busy)
            thread.start()
            for n in range(5):
                child = os.fork()
                if child == 0:
                    told["ssd"]["dirs"] = [f"{base}{n}"]
                    pagelith.Store(told).close()
                    logging.shutdown()
                    os._exit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                # In one write, since the logging thread writes concurrently.
                sys.stderr.write(f"{os.getpid()} {child}\\n")
            stop.set()
            thread.join()
            print("done")
            """
        )
        # Each child logs its own store, and no events of the parent.
        lines = [line.split(" ", 1) for line in stderr.splitlines()]
        parent, children = lines[-1][0], {line[1] for line in lines if line[1].isdigit()}
        self.assertEqual(len(children), 5)
        for child in children:
            said = [text for process, text in lines if process == child]
            self.assertTrue(any(text.startswith("disk opened") for text in said), said)
            self.assertFalse([text for text in said if text.startswith("get batch")])
        self.assertTrue(parent.isdigit())

    def test_interpreter_exits_while_events_arrive(self):
        for _ in range(5):
            self.run_program(
                """if True:
                import json, logging, sys, threading, pagelith
                logging.basicConfig(level=logging.INFO)
                store = pagelith.Store({"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10}, "log": {"batch_summary": True}})
                key = pagelith.Key(pagelith.Namespace("n"), bytes(32))
                begun = threading.Barrier(4)

                def busy():
                    begun.wait()
                    while True:
                        store.get([key], [bytearray(8)])

                for _ in range(3):
                    threading.Thread(target=busy, daemon=True).start()
                begun.wait()
                print("done")
                """
            )


class Opened(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.directory = os.path.join(self.home.name, "store")

    def test_open_report_has_recovery_results(self):
        with pagelith.Store(settings(self.directory)) as store:
            made = store.opened
            self.assertEqual((made.made, made.objects, made.backend, made.from_checkpoint), (True, 0, "blocking", False))
            self.assertIn("blocking is configured", made.backend_reason)
            self.assertEqual(made.memory["total"], sum(made.memory[name] for name in made.memory if name != "total"))
            self.assertEqual((made.memory["arena"], made.segment_bytes), (8 << 20, 4 << 20))
            self.assertTrue(made.segments >= 4 and 0 < made.object_bytes_max < 4 << 20)
            store.put(pages(20), [b"x" * 5000] * 20)
        # Also for a closed store.
        self.assertTrue(store.opened.made)
        with pagelith.Store(settings(self.directory)) as store:
            again = store.opened
            self.assertEqual((again.made, again.objects, again.from_checkpoint), (False, 20, True))
            self.assertTrue(again.recovery > 0)
            clean = (again.torn_records, again.mended_blocks, again.refused_checkpoints, again.scanned_segments)
            self.assertEqual((clean, again.segments), ((0, 0, 0, 0), made.segments))

    def test_store_without_ssd_has_no_backend(self):
        with pagelith.Store({"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10}}) as store:
            found = store.opened
            self.assertEqual((found.backend, found.segments, found.made), (None, 0, False))
