/* info.c - version, status texts, dtype sizes, and the choice of instruction set. */
#include "base/half.h"
#include "run/dispatch.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)

const char *tn_version(void)
{
    return STRING(TN_VERSION_MAJOR) "." STRING(TN_VERSION_MINOR) "." STRING(TN_VERSION_PATCH);
}

const char *tn_status_text(tn_status status)
{
    switch ((int)status) {
    case TN_OK:
        return "success";
    case TN_ERR_NULL:
        return "a required operand is missing";
    case TN_ERR_DTYPE:
        return "a dtype is unknown or not allowed for its operand";
    case TN_ERR_VALUE:
        return "an option is out of range (eps, group, partial, divisor, an enum, or operands that exclude "
               "each other)";
    case TN_ERR_SIZE:
        return "sizes or strides overflow the address space";
    case TN_ERR_OVERLAP:
        return "an output overlaps another operand, or itself";
    case TN_ERR_STRUCT_SIZE:
        return "struct_size is unset or from a newer version that asks for more";
    case TN_ERR_ISA:
        return "that instruction set is not usable here";
    case TN_ERR_MEMORY:
        return "out of memory";
    default:
        return "unknown status";
    }
}

size_t tn_dtype_size(tn_dtype dtype)
{
    return tn_element_size(dtype);
}

const char *tn_isa_name(void)
{
    return tn_active_kernels()->name;
}

size_t tn_isa_list(const char **names, size_t capacity)
{
    size_t count = 0;
    for (const struct tn_kernels *k; (k = tn_usable_kernels(count)); count++)
        if (names && count < capacity)
            names[count] = k->name;
    return count;
}

tn_status tn_isa_set(const char *name)
{
    if (!name)
        return TN_ERR_NULL;
    const struct tn_kernels *kernels = tn_find_kernels(name);
    if (!kernels)
        return TN_ERR_ISA;
    tn_use_kernels(kernels);
    return TN_OK;
}
