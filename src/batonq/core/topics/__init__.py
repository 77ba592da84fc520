"""Topics: the filters of subscriptions, and which subscriptions get a published message."""
