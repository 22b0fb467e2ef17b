/* blocks.h - memory for large results, used again instead of returned to the system.
 *
 * malloc maps a large block anew each time and unmaps it when freed, so every page of every result is faulted in and
 * cleared: several times what a norm takes. Here freed blocks are kept, up to a limit, and mapped with huge pages.
 * Both extension modules are built with this file; each holds blocks of its own. All functions may be called from any
 * thread, and in the child after fork. */
#ifndef TRUENORM_BLOCKS_H
#define TRUENORM_BLOCKS_H

#include <cstddef>

namespace truenorm_blocks
{

constexpr size_t kLeast =
    size_t{4} << 20; /* smaller results are left to the allocator, which keeps such memory */

struct Block {
    void *data = nullptr;
    size_t size = 0;
};

/* A block of at least `size` bytes at a multiple of 64 (of 2 MiB), or none: then allocate as usual. None for a size
 * below kLeast, with a limit of 0, or where the system has no more. The contents are arbitrary. */
Block take(size_t size);
/* A block that nobody uses any more; keeps it or unmaps it. */
void give(Block block) noexcept;

size_t held();                /* bytes kept, in use by nobody */
void release();               /* unmaps all of them */
size_t limit();               /* most bytes that are kept; first TN_MEMORY_LIMIT, or 256 MiB */
void set_limit(size_t bytes); /* unmaps what is above it; 0: no blocks are made from now on */

} // namespace truenorm_blocks
#endif
