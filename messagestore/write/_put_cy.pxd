cimport cython
from storebytes._bytes_cy cimport *
from commitlog._append_cy cimport Appender
from storebytes._lock_cy cimport Lock, is_taken
from commitlog._message_cy cimport Message, PutResult
from messagestore.write._gate_cy cimport Gate

cdef object OK, ZERO, NO_QUEUE
cdef I32 IS_BATCH
cdef tuple SPECIAL

cpdef bint has_special(Message message) except -1

cdef class PutPath:
    cdef public Appender _appender
    cdef public Gate _gate
    cdef public Lock _lock
    cdef public object _dispatcher, _routing, _rules
    cdef public dict _admitted
    cdef public Bool _is_sync
    cdef PutResult _put(self, Message message, bint check)

cdef PutResult _put_one(PutPath path, Message message)

# Every default of a keyword argument costs two changes of a reference count, and those of None wait for each other. So a call
# with nothing but a message goes to the C function, and any other call to the method.
cdef extern from *:
    """
    static PyObject *(*one_put)(PyObject *, PyObject *);
    static PyTypeObject *message_type;

    static PyObject *call_put(PyObject *path, PyObject *const *args, Py_ssize_t count, PyObject *names)
    {
        PyObject *method, *result;
        if (count == 1 && names == NULL && Py_TYPE(args[0]) == message_type)
            return one_put(path, args[0]);
        if ((method = PyObject_GetAttrString(path, "put")) == NULL)
            return NULL;
        result = PyObject_Vectorcall(method, args, (size_t)count, names);
        Py_DECREF(method);
        return result;
    }

    static PyMethodDef put_method = {
        "put", (PyCFunction)(void (*)(void))call_put, METH_FASTCALL | METH_KEYWORDS,
        "put($self, message, body=None, *, tags=None, keys=None, properties=None, queue_id=-1, delay=None, delay_level=0, "
        "deliver_at=None, check=True)\\n--\\n\\nPut one message; see `MessageStore.put`."
    };

    #define set_quick_put(function, kind) \\
        (one_put = (PyObject *(*)(PyObject *, PyObject *))(function), message_type = (PyTypeObject *)(kind))
    #define quick_put(path) PyCFunction_New(&put_method, (PyObject *)(path))
    """
    object quick_put(PutPath path)
    void set_quick_put(PutResult (*function)(PutPath, Message), object kind)
