#!/bin/sh
# Debian's own RabbitMQ (3.10.8 in bookworm), without starting it as a service; and the client for the tests.
set -e
export DEBIAN_FRONTEND=noninteractive
if ! command -v rabbitmq-server >/dev/null; then
  apt-get update -qq
  RUNLEVEL=1 apt-get install -y -qq --no-install-recommends rabbitmq-server
fi
"${PYTHON:-python3}" -m pip install -q pika
