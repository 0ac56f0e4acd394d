"""A storm: stores of this process and of another one, called at random from many threads, while memory is dropped under calls, tasks
are cancelled, and signals are raised.

    python -m storm --operations 100000 --seed 7          with the folder above in PYTHONPATH, and STORE_PROGRAM as in check.sh

- Every byte of every hit is compared with what its key stands for (`content`).
- Memory that a call has let go of holds a pattern until it is used again, and is looked at then: whoever writes late is found out
  (`memory`). What Python frees is for AddressSanitizer (`python/sanitize.sh`).
- What happened is counted (`tally`); a kind of event that never came is a failure, as is an error that nothing explains.
"""
