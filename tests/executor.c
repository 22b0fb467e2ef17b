/* executor.c - a parallel loop over POSIX threads that runs its tasks in a shuffled order. */
#include "executor.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct job {
    atomic_size_t next;
    size_t tasks;
    const size_t *order;
    void (*task)(void *, size_t);
    void *arg;
};

static void *work(void *arg)
{
    struct job *job = arg;
    for (size_t i = atomic_fetch_add(&job->next, 1); i < job->tasks; i = atomic_fetch_add(&job->next, 1))
        job->task(job->arg, job->order[i]);
    return NULL;
}

static void parallel_for(void *ctx, size_t tasks, void (*task)(void *, size_t), void *arg)
{
    struct test_executor *e = ctx;
    size_t *order = must_malloc(tasks * sizeof *order);
    pthread_t threads[16];
    e->calls++;
    e->tasks += tasks;
    for (size_t i = 0; i < tasks; i++) {
        size_t j = rng_below(&e->rng, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    struct job job = {0, tasks, order, task, arg};
    for (size_t i = 1; i < e->threads; i++)
        if (pthread_create(&threads[i], NULL, work, &job)) {
            perror("pthread_create");
            exit(2);
        }
    work(&job);
    for (size_t i = 1; i < e->threads; i++)
        pthread_join(threads[i], NULL);
    free(order);
}

tn_executor executor_make(struct test_executor *e, size_t threads)
{
    *e = (struct test_executor){threads, {threads}, 0, 0};
    tn_executor ex = {parallel_for, e};
    return ex;
}
