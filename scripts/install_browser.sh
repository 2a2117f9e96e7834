#!/bin/sh
# Debian's Chromium and its driver, for the tests of the page of `report`.
set -e
export DEBIAN_FRONTEND=noninteractive
if ! command -v chromedriver >/dev/null; then
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends chromium chromium-driver
fi
