"""The paper's tables: what is printed there, what to train for each cell, and this library's numbers beside them."""
