/* Calls that look alike: what a function is given, but for the addresses of tensors. As `_key` of `tilekit.kernels._recall`. */
#include "_launch.h"

enum { MOST_VALUES = 32, MOST_PARTS = 2 + 4 * MOST_VALUES };

/* What is known of some arguments, owned. */
typedef struct {
    PyObject *parts[MOST_PARTS]; /* of each argument its name, and three of a tensor */
    Py_ssize_t count;
} Key;

static int add_part(Key *key, PyObject *part)
{
    if (part == NULL || key->count == MOST_PARTS) {
        Py_XDECREF(part);
        return 0;
    }
    key->parts[key->count++] = part;
    return 1;
}

/* Append which of the tensors before lies in the same memory, and how far it is from there; nothing if none does. 0, perhaps with
 * an exception, if that is not told by offsets. */
static int add_distance(Key *key, PyObject *tensor, PyObject *storage, PyObject *tensors)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
        PyObject *first = PyList_GET_ITEM(tensors, i);
        if (held(first, &Tensor_storage) != storage)
            continue;
        PyObject *from = held(first, &Tensor_offset), *to = held(tensor, &Tensor_offset);
        return from != NULL && to != NULL && held(first, &Tensor_dtype) == held(tensor, &Tensor_dtype) &&
               add_part(key, PyLong_FromSsize_t(i)) && add_part(key, PyNumber_Subtract(to, from));
    }
    return 1;
}

/* Append what is known of a tensor, and the tensor to a list; 0, perhaps with an exception, if it has no memory. */
static int add_tensor(Key *key, PyObject *tensor, PyObject *tensors)
{
    PyObject *storage = held(tensor, &Tensor_storage);
    return storage != NULL && storage != Py_None && add_part(key, get(tensor, &Tensor_traits)) &&
           add_distance(key, tensor, storage, tensors) && PyList_Append(tensors, tensor) == 0;
}

/* Append what is known of an argument that is no sequence, and a tensor to a list; 0, perhaps with an exception, if it is of an unusual
 * kind. */
static int add_leaf(Key *key, PyObject *value, PyObject *plain, PyObject *tensors)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == Tensor_traits.owner)
        return add_tensor(key, value, tensors);
    if (value != Py_None) {
        int is_plain = PySet_Contains(plain, (PyObject *)type);
        if (is_plain == 0) {
            PyObject *tensor = array_as_tensor(value);
            int added = tensor != NULL && add_tensor(key, tensor, tensors);
            Py_XDECREF(tensor);
            return added;
        }
        if (is_plain < 0 || (type == &PyFloat_Type && PyFloat_AS_DOUBLE(value) == 0)) /* zero has two signs, which are equal */
            return 0;
        if (!add_part(key, Py_NewRef((PyObject *)type)))
            return 0;
    }
    return add_part(key, Py_NewRef(value));
}

/* Append what is known of an argument, or of a tuple of several in the place of one; as `add_leaf`. */
static int add_value(Key *key, PyObject *value, PyObject *plain, PyObject *tensors)
{
    if (!PyTuple_CheckExact(value))
        return add_leaf(key, value, plain, tensors);
    int added = add_part(key, Py_NewRef((PyObject *)&PyTuple_Type)) && add_part(key, PyLong_FromSsize_t(PyTuple_GET_SIZE(value)));
    for (Py_ssize_t i = 0; added && i < PyTuple_GET_SIZE(value); i++)
        added = add_leaf(key, PyTuple_GET_ITEM(value, i), plain, tensors);
    return added;
}

PyObject *key_of(PyObject *function, PyObject *args, PyObject *kwargs, PyObject *plain, PyObject *tensors)
{
    if (!PyTuple_CheckExact(args) || !PyDict_CheckExact(kwargs) || !PyFrozenSet_CheckExact(plain) || !PyList_CheckExact(tensors)) {
        PyErr_SetString(PyExc_TypeError, "expected a function, a tuple, a dict, a frozenset, and a list");
        return NULL;
    }
    Key known = {.count = 0};
    PyObject *name, *value, *key = NULL;
    Py_ssize_t positional = PyTuple_GET_SIZE(args), at = 0;
    int usual = positional + PyDict_GET_SIZE(kwargs) <= MOST_VALUES && add_part(&known, Py_NewRef(function)) &&
                add_part(&known, PyLong_FromSsize_t(positional));
    while (usual && PyDict_Next(kwargs, &at, &name, &value))
        usual = add_part(&known, Py_NewRef(name));
    for (at = 0; usual && at < positional; at++)
        usual = add_value(&known, PyTuple_GET_ITEM(args, at), plain, tensors);
    at = 0;
    while (usual && PyDict_Next(kwargs, &at, &name, &value))
        usual = add_value(&known, value, plain, tensors);
    if (usual)
        key = PyTuple_New(known.count);
    for (at = 0; at < known.count; at++)
        if (key != NULL)
            PyTuple_SET_ITEM(key, at, known.parts[at]);
        else
            Py_DECREF(known.parts[at]);
    if (PyErr_Occurred()) {
        Py_XDECREF(key);
        return NULL;
    }
    return key != NULL ? key : Py_NewRef(Py_None);
}

/* key(function, args, kwargs, plain, tensors): see _launch.pyi. */
static PyObject *key(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "key takes 5 arguments");
        return NULL;
    }
    return key_of(args[0], args[1], args[2], args[3], args[4]);
}

PyMethodDef recall_functions[] = {
    {"key", (PyCFunction)(void (*)(void))key, METH_FASTCALL, "See _launch.pyi."},
    {NULL, NULL, 0, NULL},
};
