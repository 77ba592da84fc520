"""Scale uploaded images to several sizes: an upload service, two lanes, workers, an outbox, a dead-letter queue.

visitor ──POST /uploads──▶ uploads.py ── a signed URL
   └─────PUT the bytes───▶ uploads.py ── object store
                               │ one transaction: the image's row and its job in the outbox
                               ▼
                      baton outbox relay ──▶ transcode-paid, transcode-free
                                                 │ worker.py, autoscaled by plan.py
                                                 ▼
                     object store ◀── thumb, medium, large, webp (same keys for every attempt)
                               │ one transaction: the image's status and an event in the outbox
                               ▼
                      baton outbox relay ──▶ image-events ──▶ notices.py
corrupt images ──▶ transcode-dead ──▶ alarm.py, then repair.py repairs and redrives them
"""
