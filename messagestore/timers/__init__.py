"""The timer files of RocketMQ 5: read, counted and checked (`docs/formats/rocketmq-timer.md`).

A message with a delivery time is in the log under `rmq_sys_wheel_timer`. The broker keeps a unit for it in the timer log
(`timer_log`), and for each second a slot in the wheel (`wheel`) that leads to the units of that second. `config/timercheck` has
how far slots were delivered. `layout` has the bytes, `pending` counts what is not delivered yet, `check` compares the files
with each other and with the log, and `live` keeps them while a store delivers timers. The package starts no thread and takes no
lock.
"""
