"""The simulated cluster that imitates the shells; simkit/house takes its place."""
