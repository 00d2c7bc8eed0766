"""Data that is larger than the memory of the workers: converted once into a cache, and read in windows.

The files are divided into spans, each of which one worker converts (`mpips.data.sources`) into pieces of the
cache (`cache.py`). `conversion.py` has the steps, between which all workers agree. `windows.py` reads the
samples of a worker from the cache. Open `conversion.py` first.
"""

from mpips.data.stream.cache import Index
from mpips.data.stream.conversion import Conversion
from mpips.data.stream.windows import StreamedData

__all__ = ["Conversion", "Index", "StreamedData"]
