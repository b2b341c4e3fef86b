/* What an array of another library says of itself, by DLPack's C exchange API (https://dmlc.github.io/dlpack, version 1.2).
 *
 * A type that has it names a table of functions; one of them fills a description of an array in place, which costs no capsule. */
#include "_launch.h"
#include <string.h>

typedef struct {
    int32_t type, id;
} Device;

typedef struct {
    void *data;
    Device device;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Description; /* DLTensor */

typedef struct {
    uint32_t major, minor;
    void *previous, *allocate, *exported, *imported;
    int (*describe)(void *array, Description *description);
    int (*stream)(int32_t device_type, int32_t device_id, void **stream);
} Exchange; /* DLPackExchangeAPI */

enum { CPU = 1, CUDA = 2, MAJOR = 1, MOST_DIMENSIONS = 8, LAYOUTS_KEPT = 512, TYPES_KEPT = 8,
       ALIGNED = 16, MOST_DEFAULT = 1 /* CU_STREAM_LEGACY */ };

/* What is asked of Python, see `arrays` in _launch.pyi; kept. NULL until that was called. */
static PyObject *make_layout, *find_stream, *all_devices, *refused;

/* Whether a class says by itself how its instances are exported. */
static int exports_otherwise(PyObject *attributes)
{
    PyObject *ways[] = {names.dlpack, names.dlpack_device, names.torch_dispatch};
    for (int i = 0; i < 3; i++)
        if (PyDict_GetItemWithError(attributes, ways[i]) != NULL)
            return 1;
    return 0;
}

/* What a type has for a table, borrowed, by itself or from a class that it is derived from and exported like, as PyTorch's parameters are;
 * NULL if it has none, or its module's name begins with one of those that are refused. */
static PyObject *table_of(PyTypeObject *type)
{
    PyObject *module = PyObject_GetAttr((PyObject *)type, names.of_module);
    int taken = module != NULL && PyUnicode_Check(module) && type->tp_mro != NULL;
    for (Py_ssize_t i = 0; taken && i < PyTuple_GET_SIZE(refused); i++)
        taken = PyUnicode_Tailmatch(module, PyTuple_GET_ITEM(refused, i), 0, PY_SSIZE_T_MAX, -1) == 0;
    Py_XDECREF(module);
    for (Py_ssize_t i = 0; taken && i < PyTuple_GET_SIZE(type->tp_mro); i++) {
        PyTypeObject *class = (PyTypeObject *)PyTuple_GET_ITEM(type->tp_mro, i);
        PyObject *attributes = class->tp_flags & Py_TPFLAGS_HEAPTYPE ? class->tp_dict : NULL;
        if (attributes == NULL)
            return NULL;
        PyObject *table = PyDict_GetItemWithError(attributes, names.exchange);
        if (table == NULL)
            table = PyDict_GetItemWithError(attributes, names.exchange_before);
        if (table != NULL || exports_otherwise(attributes))
            return table;
    }
    return NULL;
}

/* What is known of a type: the functions that it names, and how it says whether its library differentiates by an array, where that is
 * asked of no attribute in an instance. */
static struct {
    PyTypeObject *type; /* kept, since one at the same address may be another */
    const Exchange *exchange;
    PyGetSetDef *differentiable; /* or NULL */
} known[TYPES_KEPT];

static size_t place_of(PyTypeObject *type)
{
    return ((uintptr_t)type >> 4) % TYPES_KEPT;
}

/* The functions that a type names; NULL, and no exception, if it names none. */
static const Exchange *exchange_of(PyTypeObject *type)
{
    size_t at = place_of(type);
    if (known[at].type == type)
        return known[at].exchange;
    PyObject *table = refused != NULL && type->tp_flags & Py_TPFLAGS_HEAPTYPE ? table_of(type) : NULL;
    const Exchange *exchange = NULL;
    if (table != NULL && PyCapsule_CheckExact(table))
        exchange = PyCapsule_GetPointer(table, "dlpack_exchange_api");
    else if (table != NULL && PyLong_CheckExact(table))
        exchange = PyLong_AsVoidPtr(table);
    PyErr_Clear();
    if (exchange == NULL || exchange->major != MAJOR || exchange->describe == NULL || exchange->stream == NULL)
        return NULL;
    PyObject *getter = PyObject_GetAttr((PyObject *)type, names.requires_grad);
    PyErr_Clear();
    known[at].differentiable = getter && Py_TYPE(getter) == &PyGetSetDescr_Type ? ((PyGetSetDescrObject *)getter)->d_getset : NULL;
    Py_XDECREF(getter);
    known[at].exchange = exchange;
    Py_XSETREF(known[at].type, (PyTypeObject *)Py_NewRef((PyObject *)type));
    return exchange;
}

/* What an array's layout is found again by. */
typedef struct {
    int32_t ndim;
    uint8_t code, bits;
    int64_t extents[2 * MOST_DIMENSIONS]; /* the shape, and the strides */
} Key;

static struct {
    Key key;
    PyObject *layout;
} layouts[LAYOUTS_KEPT];

/* What `make_layout` says of a shape, strides, and a dtype of DLPack's, a new reference; made once for those that were not met before. */
static PyObject *layout_of(const Key *key)
{
    uint64_t hash = (uint64_t)key->ndim * 131 + key->code * 7 + key->bits;
    for (int i = 0; i < 2 * key->ndim; i++)
        hash = (hash ^ (uint64_t)key->extents[i]) * 0x9E3779B97F4A7C15u;
    size_t at = (size_t)(hash >> 40) % LAYOUTS_KEPT;
    if (layouts[at].layout != NULL && memcmp(&layouts[at].key, key, sizeof *key) == 0)
        return Py_NewRef(layouts[at].layout);
    PyObject *shape = PyTuple_New(key->ndim), *strides = PyTuple_New(key->ndim), *layout = NULL;
    for (int i = 0; shape && strides && i < key->ndim; i++) {
        PyObject *extent = PyLong_FromLongLong(key->extents[i]), *stride = PyLong_FromLongLong(key->extents[key->ndim + i]);
        if (extent == NULL || stride == NULL) {
            Py_XDECREF(extent);
            Py_XDECREF(stride);
            Py_CLEAR(shape);
            break;
        }
        PyTuple_SET_ITEM(shape, i, extent);
        PyTuple_SET_ITEM(strides, i, stride);
    }
    if (shape != NULL && strides != NULL)
        layout = PyObject_CallFunction(make_layout, "OOii", shape, strides, key->code, key->bits);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    if (layout != NULL) {
        layouts[at].key = *key;
        Py_XSETREF(layouts[at].layout, Py_NewRef(layout));
    }
    return layout;
}

/* The stream that a library works in, borrowed, by the number of its device and its address there: the one that was met last, or what
 * `find_stream` says. NULL, perhaps with an exception, if there is none. */
static PyObject *stream_at(int ordinal, void *address)
{
    PyObject *devices = PyDict_GetItemWithError(PyModule_GetDict(all_devices), names.registry); /* tests have others */
    static struct {
        PyObject *devices, *stream; /* kept */
        void *address;
        int ordinal;
    } last;
    if (last.stream != NULL && last.address == address && last.ordinal == ordinal && last.devices == devices &&
        held(last.stream, &Stream_closed) == Py_False)
        return last.stream;
    PyObject *stream = PyObject_CallFunction(find_stream, "iK", ordinal, (unsigned long long)(uintptr_t)address);
    if (stream == NULL)
        return NULL;
    Py_XSETREF(last.stream, stream);
    Py_XSETREF(last.devices, Py_XNewRef(devices));
    last.address = address;
    last.ordinal = ordinal;
    return stream;
}

/* arrays(layout, stream, devices, refused): see _launch.pyi. */
static PyObject *arrays(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *layout, *stream, *devices, *modules;
    if (!PyArg_ParseTuple(args, "OOO!O!", &layout, &stream, &PyModule_Type, &devices, &PyTuple_Type, &modules))
        return NULL;
    Py_XSETREF(make_layout, Py_NewRef(layout));
    Py_XSETREF(find_stream, Py_NewRef(stream));
    Py_XSETREF(all_devices, Py_NewRef(devices));
    Py_XSETREF(refused, Py_NewRef(modules));
    Py_RETURN_NONE;
}

/* What an array is, by the functions that its type names, as `described` in _launch.pyi. `kept`: somebody may keep the tensor. */
static PyObject *describe(PyObject *array, int kept)
{
    const Exchange *exchange = exchange_of(Py_TYPE(array));
    Description it;
    void *stream = NULL;
    memset(&it, 0, sizeof it);
    if (exchange == NULL || exchange->describe(array, &it) != 0 || it.lanes != 1 || it.ndim < 0 || it.ndim > MOST_DIMENSIONS ||
        (it.device.type != CPU && it.device.type != CUDA) ||
        (it.device.type == CUDA && exchange->stream(CUDA, it.device.id, &stream) != 0))
        goto otherwise;
    /* PyTorch describes what it does not export: whoever wants its memory has to say that no gradient is to be had of it. */
    PyGetSetDef *getter = known[place_of(Py_TYPE(array))].differentiable;
    PyObject *differentiable = getter ? getter->get(array, getter->closure) : PyObject_GetAttr(array, names.requires_grad);
    if (differentiable == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError))
        return NULL;
    Py_XDECREF(differentiable);
    if (differentiable != NULL && differentiable != Py_False)
        goto otherwise;
    Key key;
    memset(&key, 0, sizeof key);
    key.ndim = it.ndim, key.code = it.code, key.bits = it.bits;
    int64_t step = 1;
    for (int i = it.ndim - 1; i >= 0; i--) {
        key.extents[i] = it.shape[i];
        key.extents[it.ndim + i] = it.strides ? it.strides[i] : step;
        step *= it.shape[i];
    }
    if (step == 0) /* no elements, no memory */
        goto otherwise;
    PyErr_Clear();
    PyObject *layout = layout_of(&key);
    if (layout == NULL)
        return NULL;
    if (it.device.type == CUDA && layout != Py_None) {
        PyObject *known = stream_at(it.device.id, stream), *tensor = NULL;
        if (known != NULL) {
            Py_INCREF(known);
            tensor = imported(array, (uint64_t)(uintptr_t)it.data + it.byte_offset, layout, known, (uintptr_t)stream <= MOST_DEFAULT,
                              kept);
            Py_DECREF(known);
        }
        if (tensor != NULL || PyErr_Occurred()) {
            Py_DECREF(layout);
            return tensor;
        }
    }
    return Py_BuildValue("iiKKN", it.device.type, it.device.id, (unsigned long long)(uintptr_t)stream,
                         (unsigned long long)(uintptr_t)it.data + it.byte_offset, layout);
otherwise:
    PyErr_Clear(); /* the library says what is wrong when it is asked in full */
    Py_RETURN_NONE;
}

static PyObject *described(PyObject *Py_UNUSED(module), PyObject *array)
{
    return describe(array, 1);
}

PyObject *likeness(PyObject *array, uint64_t *address)
{
    const Exchange *exchange = exchange_of(Py_TYPE(array));
    Description it;
    memset(&it, 0, sizeof it);
    if (exchange == NULL || exchange->describe(array, &it) != 0 || it.lanes != 1 || it.ndim < 0 || it.ndim > MOST_DIMENSIONS ||
        it.data == NULL) {
        PyErr_Clear();
        return Py_NewRef(Py_None);
    }
    *address = (uint64_t)(uintptr_t)it.data + it.byte_offset;
    int64_t like[2 + 2 * MOST_DIMENSIONS], *extents = like + 2, step = 1;
    like[0] = (int64_t)it.device.type << 32 | it.device.id;
    like[1] = (int64_t)it.ndim << 32 | it.code << 16 | it.bits << 8 | (int64_t)(*address % ALIGNED);
    for (int i = it.ndim - 1; i >= 0; i--) {
        extents[i] = it.shape[i];
        extents[it.ndim + i] = it.strides ? it.strides[i] : step;
        step *= it.shape[i];
    }
    return step == 0 ? Py_NewRef(Py_None)
                     : PyBytes_FromStringAndSize((char *)like, (Py_ssize_t)sizeof(int64_t) * (2 + 2 * it.ndim));
}

PyObject *array_as_tensor(PyObject *array)
{
    PyObject *tensor = exchange_of(Py_TYPE(array)) != NULL ? describe(array, 0) : NULL;
    if (tensor != NULL && Py_TYPE(tensor) != Tensor_storage.owner)
        Py_CLEAR(tensor);
    return tensor;
}

PyMethodDef exchange_functions[] = {
    {"arrays", arrays, METH_VARARGS, "See _launch.pyi."},
    {"described", described, METH_O, "See _launch.pyi."},
    {NULL, NULL, 0, NULL},
};
