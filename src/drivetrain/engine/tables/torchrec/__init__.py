"""Tables on TorchRec: fbgemm's kernels look bags up and move rows, TorchRec carries ids and bags between ranks."""
