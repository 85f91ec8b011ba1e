"""V operands: how a value tile reaches the product O^T += V^T P^T, and where P waits for it."""
