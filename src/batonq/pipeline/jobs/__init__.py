"""The runners behind `baton pipeline`: each reads, calls pure functions of data frames, writes, and says what came."""
