/* executor.h - a parallel loop over POSIX threads that runs its tasks in a shuffled order. */
#ifndef TN_TEST_EXECUTOR_H
#define TN_TEST_EXECUTOR_H

#include "support.h"

struct test_executor {
    size_t threads;
    struct rng rng;
    size_t calls, tasks; /* how often it was used, and for how many tasks in all */
};

tn_executor executor_make(struct test_executor *e, size_t threads);

#endif
