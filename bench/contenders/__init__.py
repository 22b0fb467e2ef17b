"""Who is measured: each module has FACTORIES, functions that make a Contender for a problem, or raise Absent."""
