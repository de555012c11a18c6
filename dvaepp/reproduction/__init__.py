"""The paper's tables: what is printed there, what to train for each cell, and ours beside theirs."""
