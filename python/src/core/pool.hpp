// pool.hpp - the module's own threads, for callers that bring none.
#pragma once

#include <cstddef>

#include <truenorm.h>

namespace tn
{

// The processors this process may use.
size_t usable_cpus();

// How many threads a call takes unless it says otherwise.
size_t default_threads();
void set_default_threads(size_t threads);

// An executor of up to `threads` threads, the calling one included. Threads are started when first needed and kept;
// while another call uses them, and in a task, work stays on the calling thread.
class Executor
{
  public:
    explicit Executor(size_t threads) : threads_(threads), table_{&Executor::run, this} {}
    Executor(const Executor &) = delete;
    Executor &operator=(const Executor &) = delete;
    // NULL for one thread.
    const tn_executor *get() const
    {
        return threads_ > 1 ? &table_ : nullptr;
    }

  private:
    static void run(void *self, size_t tasks, void (*task)(void *, size_t), void *arg);
    size_t threads_;
    tn_executor table_;
};

} // namespace tn
