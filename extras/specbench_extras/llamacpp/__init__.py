"""The runtime `llamacpp`: llama.cpp on a CPU, on a GGUF file as it is."""
