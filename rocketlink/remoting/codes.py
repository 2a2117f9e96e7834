"""Codes of requests and answers (docs/formats/rocketmq-remoting.md#requests)."""

from __future__ import annotations

SUCCESS = 0
NOT_SUPPORTED = 3

GET_ALL_TOPIC_CONFIG = 21
GET_BROKER_CONFIG = 26
GET_BROKER_RUNTIME_INFO = 28
GET_ALL_CONSUMER_OFFSET = 43
GET_ALL_DELAY_OFFSET = 45
GET_ALL_SUBSCRIPTION_GROUP_CONFIG = 201
EXCHANGE_BROKER_HA_INFO = 906
