"""A randomized stress run: an embedded store and a store process, called at random from many
threads, while memory is dropped during calls, tasks are cancelled, and signals are raised.

    python -m storm --operations 100000 --seed 7          with the parent directory in PYTHONPATH, and STORE_PROGRAM as in check.sh

- Every byte of every hit is compared with the expected content of its key (`content`). - Memory
that a call has released holds a pattern until it is reused, and is checked then, which detects late
writes (`memory`). Memory that Python frees is checked by AddressSanitizer (`python/sanitize.sh`). -
Events are counted (`tally`). A kind of event that never occurred is a failure, and so is an
unexpected error.
"""
