/* blocks.cpp - see blocks.h. */
#include "blocks.h"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <mutex>

#include <pthread.h>
#include <sys/mman.h>

namespace truenorm_blocks
{

namespace
{

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kDefaultLimit = size_t{256} << 20;
constexpr size_t kMost = 64; /* blocks kept: an array, so that giving one back never allocates */

size_t first_limit()
{
    const char *text = std::getenv("TN_MEMORY_LIMIT");
    if (!text || *text < '0' || *text > '9')
        return kDefaultLimit;
    char *end = nullptr;
    errno = 0;
    unsigned long long bytes = std::strtoull(text, &end, 10);
    return *end || errno || bytes > PTRDIFF_MAX ? kDefaultLimit : static_cast<size_t>(bytes);
}

/* A whole number of huge pages, at a multiple of their size. */
Block map_block(size_t size)
{
    if (size > SIZE_MAX / 2)
        return {};
    size_t whole = (size + kHuge - 1) / kHuge * kHuge;
    void *mapped = mmap(nullptr, whole + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return {};
    char *start = static_cast<char *>(mapped);
    size_t before = (kHuge - reinterpret_cast<uintptr_t>(start) % kHuge) % kHuge;
    if (before)
        munmap(start, before);
    if (before < kHuge)
        munmap(start + before + whole, kHuge - before);
#ifdef MADV_HUGEPAGE
    madvise(start + before, whole, MADV_HUGEPAGE); /* a wish: small pages do as well */
#endif
    return {start + before, whole};
}

void unmap(Block block)
{
    munmap(block.data, block.size);
}

/* The blocks kept, oldest first. */
class Shelf
{
  public:
    Block take(size_t size)
    {
        std::lock_guard<std::mutex> lock(mutex);
        size_t best = count_;
        for (size_t i = 0; i < count_; i++)
            if (blocks_[i].size >= size && blocks_[i].size - size <= slack(size) &&
                (best == count_ || blocks_[i].size <= blocks_[best].size))
                best = i;
        return best < count_ ? remove(best) : Block();
    }

    void give(Block block)
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (block.size > limit_) {
            unmap(block);
            return;
        }
        shrink(limit_ - block.size, kMost - 1);
        blocks_[count_++] = block;
        held_ += block.size;
    }

    size_t held()
    {
        std::lock_guard<std::mutex> lock(mutex);
        return held_;
    }

    void release()
    {
        std::lock_guard<std::mutex> lock(mutex);
        shrink(0, 0);
    }

    size_t limit()
    {
        std::lock_guard<std::mutex> lock(mutex);
        return limit_;
    }

    void set_limit(size_t bytes)
    {
        std::lock_guard<std::mutex> lock(mutex);
        limit_ = bytes;
        shrink(bytes, kMost);
    }

    std::mutex mutex; /* held during fork, so that the child finds the shelf in order */

  private:
    /* How much larger than asked a block may be: a quarter, and the rounding. */
    static size_t slack(size_t size)
    {
        return size / 4 + kHuge;
    }

    Block remove(size_t place)
    {
        Block block = blocks_[place];
        for (size_t i = place + 1; i < count_; i++)
            blocks_[i - 1] = blocks_[i];
        count_--;
        held_ -= block.size;
        return block;
    }

    void shrink(size_t bytes, size_t blocks)
    {
        while (count_ && (held_ > bytes || count_ > blocks))
            unmap(remove(0));
    }

    Block blocks_[kMost];
    size_t count_ = 0, held_ = 0, limit_ = first_limit();
};

/* Never destroyed: tensors may outlive the static objects. */
Shelf &shelf()
{
    static Shelf *const all = [] {
        static Shelf *made = new Shelf;
        pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                       [] { made->mutex.unlock(); });
        return made;
    }();
    return *all;
}

} // namespace

Block take(size_t size)
{
    if (size < kLeast || shelf().limit() == 0)
        return {};
    Block block = shelf().take(size);
    return block.data ? block : map_block(size);
}

void give(Block block) noexcept
{
    if (block.data)
        shelf().give(block);
}

size_t held()
{
    return shelf().held();
}

void release()
{
    shelf().release();
}

size_t limit()
{
    return shelf().limit();
}

void set_limit(size_t bytes)
{
    shelf().set_limit(bytes);
}

} // namespace truenorm_blocks
