"""A Kubernetes cluster of two nodes on this machine, with real pods, for `make drill-kubernetes`."""
