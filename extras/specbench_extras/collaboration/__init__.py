"""Whether acceptance and speed of cos, cos-naive and cos-sd are what the paper's theorems say."""
