"""`specbench bench`: time this engine on every runtime next to other engines, in one process, interleaved by document.

It also measures the cost of the instruments, the share of decode time outside forwards, and forward times by width. For
model sizes without available weights it uses random models and a forced acceptance rate (synthetic).
"""
