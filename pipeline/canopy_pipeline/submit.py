"""The script for spark-submit: the commands of ``canopy pipeline`` in a process that Spark has prepared.

spark-submit --master yarn --py-files canopy_mqtt.whl pipeline/canopy_pipeline/submit.py rollup --input … --output …
"""

from __future__ import annotations

from canopy_pipeline.cli import app

if __name__ == "__main__":
    app(prog_name="canopy pipeline")
