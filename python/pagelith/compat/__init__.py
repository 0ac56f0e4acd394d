"""Other stores' client interfaces, over Pagelith."""
