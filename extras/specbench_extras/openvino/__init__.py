"""The runtime `openvino`: PagedAttention models of OpenVINO on a CPU, and weights in fewer bits by NNCF."""
