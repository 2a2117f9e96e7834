"""The parts of a store that is open for writing.

    publish -> live_queue -> variable_queue -> queue_index   one folder a queue
                                            -> msg_store     shared by all queues; `collector` compacts it

`opening` recovers a folder, `clean_stop` leaves one that needs no recovery, `housekeeper` is the only thread.
"""
