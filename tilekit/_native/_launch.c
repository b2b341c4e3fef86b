/* The compiled part of tilekit: what every launch passes through, for the common case.
 *
 * What Python does for a launch (build the op, find the plan, look whom the memory waits for, pack the arguments, call the
 * driver, remember who uses the memory, record an event) is dozens of calls of functions, each longer than the work in it. Here it
 * is one call or two. Where anything is unusual, nothing has been done, and Python does it, which also works without this module.
 * What it reads of Python's is listed in _launch.h and described in attributes.py.
 *
 *   _build.c     calling a kernel
 *   _exchange.c  what an array of another library is
 *   _imports.c   memory of another library, as a storage and a tensor
 *   _launcher.c  one launch: memory, parameters, driver
 *   _marks.c     events recorded in a stream, with their serials
 *   _memory.c    new tensors, and what collected storages leave
 *   _program.c   recorded work, submitted in one go
 *   _recall.c    calls of ready-made kernels that look alike
 *   _recalled.c  ops of ready-made kernels that are recalled
 *   _recipe.c    what ready-made kernels are known to launch
 *   _repeat.c    work of another library's operators that is done again
 *   _submit.c    running launches: alone, in a chain, in a row
 *   _waits.c     a stream that waits for a moment of another
 *
 * Python's lock is held but for the driver's calls. Whatever was read before such a call may be another's afterwards.
 */
#include "_launch.h"
#include <structmember.h>

#define DEFINE_SLOT(type, slot) Slot type##_##slot = {#type, #slot, NULL, NULL, 0};
SLOTS(DEFINE_SLOT)
#define SLOT_ADDRESS(type, slot) &type##_##slot,
static Slot *const all_slots[] = {SLOTS(SLOT_ADDRESS) NULL};

struct Names names;
#define NAME_ENTRY(field, text) {text, &names.field},
static const struct {
    const char *text;
    PyObject **field;
} all_names[] = {NAMES(NAME_ENTRY){NULL, NULL}};

struct Helpers helpers;
#define HELPER_ENTRY(helper) {#helper, &helpers.helper},
static const struct {
    const char *text;
    PyObject **field;
} all_helpers[] = {HELPERS(HELPER_ENTRY){NULL, NULL}};

struct Constants constants;
#define CONSTANT_ENTRY(constant) {#constant, &constants.constant},
static const struct {
    const char *text;
    long *field;
} all_constants[] = {CONSTANTS(CONSTANT_ENTRY){NULL, NULL}};

int as_pointer(PyObject *value, void *where)
{
    void *pointer = PyLong_AsVoidPtr(value);
    if (pointer == NULL && PyErr_Occurred())
        return 0;
    *(void **)where = pointer;
    return 1;
}

/* An ImportError: this module was built for something else than what attributes.py describes now. Either may be NULL. */
static int mismatch(const char *what, const char *built, PyObject *described)
{
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ImportError, "it was built to read %s %s, where they have %S", what, built ? built : "no more",
                     described ? described : Py_None);
    return 0;
}

static int is_text(PyObject *object, const char *text)
{
    return object != NULL && text != NULL && PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, text) == 0;
}

static PyObject *item(PyObject *tuple, Py_ssize_t at)
{
    return at < PyTuple_GET_SIZE(tuple) ? PyTuple_GET_ITEM(tuple, at) : NULL;
}

/* Where the instances of a class have an attribute; -1 with an exception. */
static Py_ssize_t offset_of(PyObject *class, const Slot *slot)
{
    PyObject *member = PyObject_GetAttr(class, slot->name);
    if (member == NULL)
        PyErr_Clear();
    int is_slot = member && Py_TYPE(member) == &PyMemberDescr_Type &&
                  ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX;
    Py_ssize_t offset = is_slot ? ((PyMemberDescrObject *)member)->d_member->offset : -1;
    Py_XDECREF(member);
    if (!is_slot)
        PyErr_Format(PyExc_ImportError, "%s.%s is none of the class's __slots__", slot->class_name, slot->attribute);
    return offset;
}

int find_slot(PyObject *class, Slot *slot)
{
    slot->name = PyUnicode_InternFromString(slot->attribute);
    Py_ssize_t offset = slot->name ? offset_of(class, slot) : -1;
    if (offset < 0)
        return 0;
    slot->offset = offset;
    Py_XSETREF(slot->owner, (PyTypeObject *)Py_NewRef(class));
    return 1;
}

/* Find the attributes of SLOTS in the classes that have them, or, without `write`, see that they are there; 0 with an exception. */
static int match_slots(PyObject *classes, int write)
{
    Slot *const *slot = all_slots;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); i++) {
        PyObject *class, *attributes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(classes, i), "O!O!", &PyType_Type, &class, &PyTuple_Type, &attributes))
            return 0;
        const char *dot = strrchr(((PyTypeObject *)class)->tp_name, '.'), *name = dot ? dot + 1 : ((PyTypeObject *)class)->tp_name;
        for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(attributes); j++, slot++) {
            if (*slot == NULL || strcmp((*slot)->class_name, name) != 0)
                return mismatch(*slot ? (*slot)->class_name : "attributes,", *slot ? (*slot)->attribute : NULL, class);
            if (!is_text(PyTuple_GET_ITEM(attributes, j), (*slot)->attribute))
                return mismatch(name, (*slot)->attribute, PyTuple_GET_ITEM(attributes, j));
            Py_ssize_t offset = offset_of(class, *slot);
            if (offset < 0)
                return 0;
            if (write) {
                (*slot)->offset = offset;
                Py_XSETREF((*slot)->owner, (PyTypeObject *)Py_NewRef(class));
            }
        }
    }
    return *slot == NULL || mismatch((*slot)->class_name, (*slot)->attribute, NULL);
}

/* prepare(classes, names, helpers, constants): see _launch.pyi. All is looked at before anything is kept. */
static PyObject *prepare(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *classes, *texts, *objects, *numbers;
    if (!PyArg_ParseTuple(args, "O!O!O!O!:prepare", &PyTuple_Type, &classes, &PyTuple_Type, &texts, &PyDict_Type, &objects,
                          &PyDict_Type, &numbers))
        return NULL;
    if (!match_slots(classes, 0))
        return NULL;
    Py_ssize_t count = 0;
    do
        if (item(texts, count) != NULL || all_names[count].text != NULL)
            if (!is_text(item(texts, count), all_names[count].text)) {
                mismatch("the name", all_names[count].text, item(texts, count));
                return NULL;
            }
    while (all_names[count++].text != NULL);
    for (count = 0; all_helpers[count].text != NULL; count++)
        if (PyDict_GetItemString(objects, all_helpers[count].text) == NULL)
            return mismatch("the helper", all_helpers[count].text, NULL), NULL;
    if (count != PyDict_GET_SIZE(objects))
        return mismatch("the helpers", NULL, objects), NULL;
    for (count = 0; all_constants[count].text != NULL; count++) {
        PyObject *number = PyDict_GetItemString(numbers, all_constants[count].text);
        if (number == NULL || !PyLong_CheckExact(number))
            return mismatch("the constant", all_constants[count].text, number), NULL;
    }
    if (count != PyDict_GET_SIZE(numbers))
        return mismatch("the constants", NULL, numbers), NULL;
    if (!match_slots(classes, 1))
        return NULL;
    for (count = 0; all_helpers[count].text != NULL; count++)
        Py_XSETREF(*all_helpers[count].field, Py_NewRef(PyDict_GetItemString(objects, all_helpers[count].text)));
    for (count = 0; all_constants[count].text != NULL; count++)
        *all_constants[count].field = PyLong_AsLong(PyDict_GetItemString(numbers, all_constants[count].text));
    return make_finalizers();
}

static PyMethodDef functions[] = {
    {"prepare", prepare, METH_VARARGS, "See _launch.pyi."},
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

#define OWN(constant) {#constant, constant},
static const struct {
    const char *text;
    long value;
} own_constants[] = {
    OWN(VERSION) OWN(TENSOR) OWN(PARTITION) OWN(SCALAR) OWN(ABSENT) OWN(READ) OWN(WRITTEN)
    OWN(LAUNCH) OWN(GRAPH) OWN(COPY) OWN(FILL) OWN(FIELDS){NULL, 0}};

static int module_exec(PyObject *module)
{
    for (Slot *const *each = all_slots; *each != NULL; each++)
        if (((*each)->name = PyUnicode_InternFromString((*each)->attribute)) == NULL)
            return -1;
    for (int i = 0; all_names[i].text != NULL; i++)
        if ((*all_names[i].field = PyUnicode_InternFromString(all_names[i].text)) == NULL)
            return -1;
    for (int i = 0; own_constants[i].text != NULL; i++)
        if (PyModule_AddIntConstant(module, own_constants[i].text, own_constants[i].value) != 0)
            return -1;
    return add_type(module, "Launcher", make_launcher_type()) && add_type(module, "Mark", make_mark_type()) &&
                   add_type(module, "Calls", make_calls_type()) && add_type(module, "Runs", make_runs_type()) &&
                   add_type(module, "Program", make_program_type()) &&
                   add_type(module, "Launches", make_launches_type()) && add_type(module, "Recalls", make_recalls_type()) &&
                   PyModule_AddFunctions(module, submit_functions) == 0 &&
                   PyModule_AddFunctions(module, exchange_functions) == 0 &&
                   PyModule_AddFunctions(module, recall_functions) == 0 &&
                   PyModule_AddFunctions(module, recalled_functions) == 0 &&
                   PyModule_AddFunctions(module, repeat_functions) == 0 &&
                   PyModule_AddFunctions(module, memory_functions) == 0
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
