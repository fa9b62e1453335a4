"""A broker as a member of a cluster, and the controller."""
