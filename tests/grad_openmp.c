/* grad_openmp.c - the executor of truenorm.h over OpenMP. */
#include "grad_openmp.h"

bool grad_openmp(tn_executor *executor)
{
#ifdef _OPENMP
    *executor = tn_openmp();
    return true;
#else
    (void)executor;
    return false;
#endif
}
