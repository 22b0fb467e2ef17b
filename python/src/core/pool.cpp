// pool.cpp - see pool.hpp.
#include "pool.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#include <pthread.h>

namespace tn
{

namespace
{

// One parallel loop at a time; whoever comes second works alone.
class Pool
{
  public:
    bool try_run(size_t threads, size_t tasks, void (*task)(void *, size_t), void *arg)
    {
        std::unique_lock<std::mutex> use(in_use_, std::try_to_lock);
        if (!use.owns_lock())
            return false;
        size_t helpers = (threads < tasks ? threads : tasks) - 1;
        start(helpers);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            task_ = task;
            arg_ = arg;
            tasks_ = tasks;
            next_.store(0, std::memory_order_relaxed);
            wanted_ = helpers < started_ ? helpers : started_;
        }
        wake_.notify_all();
        work(task, arg, tasks);
        std::unique_lock<std::mutex> lock(mutex_);
        wanted_ = 0; // those that have not come yet are not needed
        done_.wait(lock, [this] { return working_ == 0; });
        return true;
    }

  private:
    void work(void (*task)(void *, size_t), void *arg, size_t tasks)
    {
        for (size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks;)
            task(arg, i);
    }

    void start(size_t helpers)
    {
        try {
            while (started_ < helpers) {
                std::thread(&Pool::serve, this).detach();
                started_++;
            }
        } catch (const std::system_error &) { // no more threads to be had: fewer will do
        }
    }

    void serve()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this] { return wanted_ > 0; });
            wanted_--;
            working_++;
            auto *task = task_;
            void *arg = arg_;
            size_t tasks = tasks_;
            lock.unlock();
            work(task, arg, tasks);
            lock.lock();
            if (--working_ == 0)
                done_.notify_one();
        }
    }

    std::mutex in_use_, mutex_;
    std::condition_variable wake_, done_;
    void (*task_)(void *, size_t) = nullptr;
    void *arg_ = nullptr;
    size_t tasks_ = 0, wanted_ = 0, working_ = 0;
    size_t started_ = 0; // guarded by in_use_
    std::atomic<size_t> next_{0};
};

// Never destroyed: its threads may outlive the static objects. A child process made by fork() has none of the threads,
// so it gets a pool of its own.
std::atomic<Pool *> pool{nullptr};

void forget_pool()
{
    pool.store(nullptr);
}

Pool *the_pool()
{
    Pool *p = pool.load();
    if (p)
        return p;
    static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
    (void)registered;
    Pool *fresh = new Pool;
    if (pool.compare_exchange_strong(p, fresh))
        return fresh;
    delete fresh;
    return p;
}

size_t first_default()
{
    const char *text = std::getenv("TN_NUM_THREADS");
    long given = text ? std::strtol(text, nullptr, 10) : 0;
    return given > 0 ? static_cast<size_t>(given) : usable_cpus();
}

std::atomic<size_t> &default_count()
{
    static std::atomic<size_t> count{first_default()};
    return count;
}

} // namespace

size_t usable_cpus()
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return static_cast<size_t>(CPU_COUNT(&set));
#endif
    unsigned all = std::thread::hardware_concurrency();
    return all ? all : 1;
}

size_t default_threads()
{
    return default_count().load(std::memory_order_relaxed);
}

void set_default_threads(size_t threads)
{
    default_count().store(threads, std::memory_order_relaxed);
}

void Executor::run(void *self, size_t tasks, void (*task)(void *, size_t), void *arg)
{
    size_t threads = static_cast<Executor *>(self)->threads_;
    if (tasks > 1 && threads > 1 && the_pool()->try_run(threads, tasks, task, arg))
        return;
    for (size_t i = 0; i < tasks; i++)
        task(arg, i);
}

} // namespace tn
