/* The compiled part of tilekit: what every launch passes through, for the common case.
 *
 * What Python does for a launch (build the op, find the plan, look whom the memory waits for, pack the arguments, call the
 * driver, remember who uses the memory, record an event) is dozens of calls of functions, each longer than the work in it. Here it
 * is one call or two. Where anything is unusual, nothing has been done, and Python does it, which also works without this module.
 * What the attributes mean is told where they are: storage.py, stream.py, tensor.py, planning.py...
 *
 *   _build.c     calling a kernel
 *   _launcher.c  one launch: memory, parameters, driver
 *   _marks.c     recorded places in a stream
 *   _program.c   recorded work, submitted in one go
 *   _submit.c    running launches: alone, in a chain, in a row
 *
 * Python's lock is held but for the driver's calls. Whatever was read before such a call may be another's afterwards.
 */
#include "_launch.h"
#include <structmember.h>

#define DEFINE_SLOT(type, slot) Slot type##_##slot = {#type, #slot, NULL, NULL, 0};
SLOTS(DEFINE_SLOT)
#define SLOT_ADDRESS(type, slot) &type##_##slot,
static Slot *const all_slots[] = {SLOTS(SLOT_ADDRESS) NULL};

Helpers helpers;
#define HELPER_ENTRY(name) {#name, &helpers.name},
static const struct {
    const char *name;
    PyObject **place;
} all_helpers[] = {HELPERS(HELPER_ENTRY){NULL, NULL}};

int as_pointer(PyObject *value, void *where)
{
    void *pointer = PyLong_AsVoidPtr(value);
    if (pointer == NULL && PyErr_Occurred())
        return 0;
    *(void **)where = pointer;
    return 1;
}

int intern(const Text *texts)
{
    while (texts->place != NULL && (*texts->place = PyUnicode_InternFromString(texts->text)) != NULL)
        texts++;
    return texts->place == NULL;
}

/* Where the instances of a class have the attributes that SLOTS names. */
static int prepare_class(PyTypeObject *class)
{
    const char *dot = strrchr(class->tp_name, '.'), *name = dot ? dot + 1 : class->tp_name;
    for (Slot *const *each = all_slots; *each != NULL; each++) {
        if (strcmp((*each)->class_name, name) != 0)
            continue;
        PyObject *found = PyObject_GetAttr((PyObject *)class, (*each)->name);
        if (found == NULL)
            return 0;
        int is_slot = Py_TYPE(found) == &PyMemberDescr_Type && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX;
        if (is_slot)
            (*each)->offset = ((PyMemberDescrObject *)found)->d_member->offset;
        Py_DECREF(found);
        if (!is_slot) {
            PyErr_Format(PyExc_TypeError, "%s.%s is none of the class's __slots__", name, (*each)->attribute);
            return 0;
        }
        Py_XSETREF((*each)->owner, (PyTypeObject *)Py_NewRef(class));
    }
    return 1;
}

static PyObject *prepare(PyObject *Py_UNUSED(module), PyObject *classes, PyObject *known)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); i++) {
        PyObject *class = PyTuple_GET_ITEM(classes, i);
        if (!PyType_Check(class)) {
            PyErr_Format(PyExc_TypeError, "expected classes, not %R", class);
            return NULL;
        }
        if (!prepare_class((PyTypeObject *)class))
            return NULL;
    }
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (known != NULL && PyDict_Next(known, &at, &key, &value)) {
        int i = 0;
        while (all_helpers[i].name != NULL && PyUnicode_CompareWithASCIIString(key, all_helpers[i].name) != 0)
            i++;
        if (all_helpers[i].name == NULL) {
            PyErr_Format(PyExc_TypeError, "no helper is called %R", key);
            return NULL;
        }
        Py_XSETREF(*all_helpers[i].place, Py_NewRef(value));
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"prepare", (PyCFunction)(void (*)(void))prepare, METH_VARARGS | METH_KEYWORDS, "See _launch.pyi."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, const char *name, PyObject *type)
{
    if (type == NULL)
        return 0;
    int added = PyModule_AddObjectRef(module, name, type);
    Py_DECREF(type);
    return added == 0;
}

static int module_exec(PyObject *module)
{
    for (Slot *const *each = all_slots; *each != NULL; each++)
        if (((*each)->name = PyUnicode_InternFromString((*each)->attribute)) == NULL)
            return -1;
    if ((helpers.submission = PyUnicode_InternFromString("submission")) == NULL)
        return -1;
    return add_type(module, "Launcher", make_launcher_type()) && add_type(module, "Mark", make_mark_type()) &&
                   add_type(module, "Calls", make_calls_type()) && add_type(module, "Runs", make_runs_type()) &&
                   add_type(module, "Program", make_program_type()) &&
                   PyModule_AddFunctions(module, submit_functions) == 0
               ? 0
               : -1;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* what is known of classes is for one */
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_launch", .m_doc = "The compiled part of tilekit.", .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__launch(void)
{
    return PyModuleDef_Init(&module);
}
