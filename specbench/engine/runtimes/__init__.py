"""Runtimes: how a model's forward is computed and where its cache is kept. Methods see only a `Session`."""

import sys

# Whenever OpenVINO is imported it reports that to an analytics host, under an id that it keeps in the home folder, if
# it finds this package. It does without a package that is not installed.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
