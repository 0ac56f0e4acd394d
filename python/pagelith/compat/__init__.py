"""Client interfaces of other stores, implemented over Pagelith."""
