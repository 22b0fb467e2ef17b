/* grad_openmp.h - tn_openmp(), compiled with -fopenmp where there is one; a file of its own, because the thread
 * sanitizer does not know the OpenMP runtime. */
#ifndef TN_TEST_GRAD_OPENMP_H
#define TN_TEST_GRAD_OPENMP_H

#include <stdbool.h>

#include "truenorm.h"

bool grad_openmp(tn_executor *executor); /* false: built without OpenMP */

#endif
