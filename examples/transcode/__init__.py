"""Images come in, several sizes come out: an upload service, two lanes, workers, an outbox, and dead letters.

visitor ──POST /uploads──▶ uploads.py ── a signed address
   └─────PUT the bytes───▶ uploads.py ── object store
                               │ one transaction: the image's row and its job in the outbox
                               ▼
                      baton outbox relay ──▶ transcode-paid, transcode-free
                                                 │ worker.py, as many as scaling.py says
                                                 ▼
                     object store ◀── thumb, medium, large, webp (same keys at every try)
                               │ one transaction: the image's status and an event in the outbox
                               ▼
                      baton outbox relay ──▶ image-events ──▶ notices.py
corrupt images ──▶ transcode-dead ──▶ alarm.py, then repair.py fixes and redrives them
"""
