"""DLIO, the engine of MLPerf Storage, as the judge: its data, its loop and its measure; loaders are plugged in."""
