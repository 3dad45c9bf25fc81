"""mqtt.js: under Node, and on a web page. The scripts are in tests/e2e/js."""
